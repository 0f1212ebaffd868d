"""Memory for a tile of logits, readable without torch for plans."""

TILE_BYTES = int(0.73 * 2**30)
"""Bytes on an accelerator."""
CPU_TILE_BYTES = 176 * 2**20
