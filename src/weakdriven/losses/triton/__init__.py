"""The mixed loss as one Triton kernel; imported on first use by `losses.tiles`."""
