//! Programs for the kernel: an assembler and a loader, without clang.
