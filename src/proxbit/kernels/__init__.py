"""The C++ kernels: the library, its functions for training, and those for packed networks."""
