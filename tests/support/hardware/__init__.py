"""What stands in for GPUs and cgroups, each simulated part named so, and the real ones where they are."""
