"""What `import fractune` offers: jobs, their results and the tuning log, for programs."""
