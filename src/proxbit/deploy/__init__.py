"""Packed networks in use: from a run to a file, on images, beside float."""
