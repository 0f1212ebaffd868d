"""Memory for a tile of logits. A plan reads it without torch."""

TILE_BYTES = int(0.73 * 2**30)
"""On an accelerator."""
CPU_TILE_BYTES = 176 * 2**20
