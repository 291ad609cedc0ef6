"""The benchmarks' common parts, and the programs that their ranks run."""
