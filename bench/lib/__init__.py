"""What the benchmarks share, and the programs that their ranks run."""
