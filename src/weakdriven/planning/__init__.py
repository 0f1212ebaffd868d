"""What a stage takes before it runs: memory, time and disk by arithmetic alone; no torch, no files."""
