"""Devices by name with their published rates, and parsing of machines such as `8xH100-80G`."""

import difflib
import re
from dataclasses import dataclass

from weakdriven.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One accelerator; rates are the vendor's, for bf16 without sparsity."""

    name: str
    memory_gib: float
    """Memory that a program can allocate, a little less than the nominal size."""
    tflops: float
    bandwidth: float
    """Memory bandwidth in TB/s."""
    link: float = 32.0
    """Bandwidth to other devices of the same computer, in GB/s and one direction."""

    @property
    def memory(self) -> float:
        return self.memory_gib * GIB

    @property
    def is_cpu(self) -> bool:
        return self.name == "CPU"


DEVICES = {
    device.name: device
    for device in (
        Device("H200-141G", 139.8, 989, 4.8, 450),
        Device("H100-80G", 79.1, 989, 3.35, 450),
        Device("H100-94G", 93.1, 835, 3.9, 300),
        Device("A100-80G", 79.2, 312, 2.039, 300),
        Device("A100-40G", 39.4, 312, 1.555, 300),
        Device("B200-180G", 178.0, 2250, 8.0, 900),
        Device("L40S-48G", 44.4, 362, 0.864),
        Device("RTX4090-24G", 23.5, 165, 1.008),
        Device("MI300X-192G", 191.0, 1307, 5.3, 448),
        Device("CPU", 64.0, 0.05, 0.05, 1.0),
    )
}
"""The CPU's numbers are guesses: two cores of a small server."""
MEASURED = "H200-141G"
"""The only device that was measured; the others are scaled by their published rates."""
NODE = 8
"""Maximum number of devices in one computer; assumed."""
NETWORK, REACHED = 50.0, 0.8
"""Bandwidth of a device to other computers in GB/s (NDR InfiniBand, 400 Gb/s), and the share of it that is reached;
assumed."""


@dataclass(frozen=True)
class Machine:
    """One or more devices of one kind, and how weights are distributed over them."""

    device: Device
    count: int = 1
    sharding: str = "none"
    """`none` for one device; `ddp` keeps all weights on each device; `fsdp` (FSDP2) shards what is trained."""

    @property
    def split(self) -> int:
        """Number of devices over which weights are sharded."""
        return self.count if self.sharding == "fsdp" else 1

    @property
    def link(self) -> float:
        """Bandwidth between devices in GB/s: the device's link within one computer, else at most the network's."""
        return self.device.link if self.count <= NODE else min(self.device.link, REACHED * NETWORK)

    def __str__(self) -> str:
        return f"{self.count}x{self.device.name}" if self.count > 1 else self.device.name


def parse_machine(text: str, sharding: str | None = None) -> Machine:
    """
    >>> parse_machine("8xH100-80G").count
    8
    >>> parse_machine("h200").device.name, parse_machine("H100-80G:8").count
    ('H200-141G', 8)
    """
    match = re.fullmatch(r"(?:(\d+)\s*[xX*]\s*)?(.+?)(?:\s*:\s*(\d+))?", text.strip())
    if match is None or (match[1] and match[3]):
        count, name = 0, ""
    else:
        count, name = int(match[1] or match[3] or 1), _plain(match[2])
    if name not in NAMES or count < 1:
        near = difflib.get_close_matches(name, NAMES, 1, cutoff=0.4)
        hint = f" Did you mean {NAMES[near[0]].name}?" if near and count else ""
        raise UserError(
            f"--gpus: {text!r} is not a device such as H100-80G, or several such as 8xH100-80G.{hint} Known devices: "
            f"{', '.join(DEVICES)}."
        )
    if sharding not in (None, "ddp", "fsdp"):
        raise UserError(f"--sharding: expected ddp or fsdp, found {sharding!r}.")
    return Machine(NAMES[name], count, (sharding or "fsdp") if count > 1 else "none")


def match_device(name: str) -> Device | None:
    """Return the device for a driver's name such as `NVIDIA H200`."""
    return next((device for known, device in NAMES.items() if known in _plain(name)), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]|gb?$", "", name.lower())


NAMES = {_plain(device.name): device for device in DEVICES.values()}
for _device in DEVICES.values():
    NAMES.setdefault(_plain(_device.name.partition("-")[0]), _device)
"""Devices by lower-case name, with and without memory; a name without memory means the first device of its kind."""
