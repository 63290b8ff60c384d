"""The C++ kernels: the library, what training calls of it, and what packed networks call."""
