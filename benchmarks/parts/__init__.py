"""Parts of the commands of benchmarks/."""
