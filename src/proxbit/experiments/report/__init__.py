"""From lines of results to a report."""
