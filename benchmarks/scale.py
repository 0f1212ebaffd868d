"""A model of training on more GPUs than were measured: hours and memory of a pair on 8 to 512 GPUs.

It takes the measured step of one H200 (rows of results.csv) and adds the communication of FSDP2, by published figures
of NVLink and InfiniBand. Nothing here was run on several GPUs. `python benchmarks/scale.py` writes the tables of
docs/dev/scale-model.md between their markers.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from weakdriven.planning.devices import DEVICES, MEASURED, NETWORK, NODE, REACHED
from weakdriven.planning.speed import sharded_traffic

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "dev" / "scale-model.md"
GIB, GB = 2**30, 1e9

HIDDEN = 0.9
"""Share of the compute time that can hide communication; the first gathers and the last scatter cannot be hidden."""
H200, H100 = 141 * GB, 80 * GB
RESERVED = 0.92
"""Share of a device's memory for tensors; the rest is CUDA's context, NCCL's buffers and fragmentation."""
ROWS, TOKENS, BATCH = 111_657, 4096, 512
"""Rows of the paper's math set; tokens of a row, assumed to be full, so that hours are an upper bound; batch size."""
MICRO = 4 * 4096
"""Tokens in a device's micro-batch, as in the measured step."""


@dataclass(frozen=True)
class Size:
    """The shape of a dense Qwen3 or Qwen2.5 model; both models of a pair have it."""

    name: str
    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    head_size: int
    vocabulary: int
    tied: bool

    @property
    def layer(self) -> int:
        """Number of weights in a layer, without norms."""
        attention = self.width * self.head_size * (2 * self.heads + 2 * self.groups)
        return attention + 3 * self.width * self.inner

    @property
    def head(self) -> int:
        return self.vocabulary * self.width

    @property
    def weights(self) -> int:
        return self.layers * self.layer + self.head * (1 if self.tied else 2)

    def flops(self, tokens: int, length: int) -> float:
        """Count the operations of a forward pass: two per weight, and attention over half of the positions."""
        attention = 2 * 2 * self.layers * self.heads * self.head_size * length / 2
        return tokens * (2 * (self.layers * self.layer + self.head) + attention)


SIZES = [
    Size("4B", 36, 2560, 9728, 32, 8, 128, 151_936, tied=True),
    Size("8B", 36, 4096, 12_288, 32, 8, 128, 151_936, tied=False),
    Size("14B", 40, 5120, 17_408, 40, 8, 128, 151_936, tied=False),
    Size("32B", 64, 5120, 25_600, 64, 8, 128, 151_936, tied=False),
    Size("70B", 80, 8192, 29_568, 64, 8, 128, 152_064, tied=False),
]
COUNTS = [8, 64, 512]


def measured_step(variant: str = "pair, all recomputed", shape: str = "qwen3-4b 4x4096") -> float:
    """Return the seconds of a measured step on one H200; by default, of the 4B pair with four rows of 4096 tokens."""
    with (HERE / "results.csv").open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["benchmark"], row["variant"], row["shape"], row["hardware"])
            == ("joint_step", variant, shape, "NVIDIA H200")
        ]
    return float(rows[-1]["median_ms"]) / 1000


def achieved() -> float:
    """Return the operations per second of the measured step, including recomputation."""
    return 2 * 4 * SIZES[0].flops(MICRO, TOKENS) / measured_step()


@dataclass(frozen=True)
class Estimate:
    size: Size
    devices: int
    bytes_per_weight: int
    """Weights, gradients and AdamW state: 8 in pure bf16, 16 with fp32 masters."""

    @property
    def accumulation(self) -> int:
        """Micro-batches per step on each device; all devices share the batch."""
        return max(1, BATCH * TOKENS // (MICRO * self.devices))

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a device; with many devices, at least one row each."""
        return max(TOKENS, min(MICRO, BATCH * TOKENS // self.devices))

    def compute(self) -> float:
        """Return the compute seconds of one micro-batch of both models: forward, again forward, and backward."""
        return 2 * 4 * self.size.flops(self.tokens, TOKENS) / achieved()

    def bandwidth(self) -> float:
        """Return the bytes per second of large collectives, over NVLink within a machine and InfiniBand beyond."""
        return REACHED * GB * (DEVICES[MEASURED].link if self.devices <= NODE else NETWORK)

    def traffic(self) -> float:
        """Return the bytes that a device exchanges for one micro-batch, for both models in bf16."""
        return sharded_traffic(2 * self.size.weights, 2, 2, self.devices)

    def communication(self) -> float:
        return self.traffic() / self.bandwidth()

    def step(self) -> float:
        """Return the seconds of a step: compute, and communication that compute cannot hide."""
        late = max(0.0, self.communication() - HIDDEN * self.compute())
        return self.accumulation * (self.compute() + late)

    def hours(self) -> float:
        """Return the hours of one epoch of joint training over the paper's math set."""
        return ROWS // BATCH * self.step() / 3600

    def memory(self) -> dict[str, float]:
        """Return bytes per device: its shard of both models, gathered weights, and activations of a micro-batch."""
        size = self.size
        shared = 2 * self.bytes_per_weight * size.weights / self.devices
        ends = 2 * size.head * (1 if size.tied else 2)  # embedding and head, in bf16 from forward to backward
        gathered = 2 * (2 * ends) + 2 * 2 * 2 * size.layer  # of both, with gradients; two layers at a time
        kept = 2 * 2 * size.layers * size.width * self.tokens  # each layer's input, of both
        working = 2 * self.tokens * (4 * size.width + 3 * size.inner + 2 * size.head_size * size.heads)
        return {"share": shared, "gathered": gathered, "activations": kept + working}

    def total(self) -> float:
        return sum(self.memory().values())

    def fits(self, device: float) -> bool:
        return self.total() <= RESERVED * device

    def bound(self) -> str:
        if self.communication() > HIDDEN * self.compute():
            return "communication"
        return "products"


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def time_table() -> str:
    rows = []
    for size in SIZES:
        for devices in COUNTS:
            one = Estimate(size, devices, 8)
            share = one.communication() / one.compute()
            rows.append(
                [
                    f"{size.name} + {size.name}",
                    str(devices),
                    f"{one.tokens} x {one.accumulation}",
                    f"{one.step():.1f}",
                    f"{one.hours():.1f}",
                    f"{share:.0%}",
                    one.bound(),
                ]
            )
    headings = ["pair", "GPUs", "tokens of a micro-batch x micro-batches", "s a step", "hours an epoch"]
    return table([*headings, "communication / products", "limit"], rows)


def memory_table() -> str:
    rows = []
    for size in SIZES:
        for devices in COUNTS:
            cells = [f"{size.name} + {size.name}", str(devices)]
            for bytes_per_weight in (8, 16):
                one = Estimate(size, devices, bytes_per_weight)
                parts = one.memory()
                fits = "both" if one.fits(H100) else "H200 alone" if one.fits(H200) else "neither"
                cells += [f"{parts['share'] / GIB:.0f} + {(one.total() - parts['share']) / GIB:.0f} GiB", fits]
            rows.append(cells)
    return table(["pair", "GPUs", "bf16: share + rest", "fits", "fp32 masters: share + rest", "fits"], rows)


def crossings() -> str:
    """Tabulate the GPUs at which a pair first fits, and at which communication is the limit."""
    rows = []
    for size in SIZES:
        fitting = [n for n in (1, 2, 4, 8, 16, 32, 64) if Estimate(size, n, 16).fits(H200)]
        slow = [n for n in (16, 32, 64, 128, 256, 512) if Estimate(size, n, 8).bound() == "communication"]
        ends = Estimate(size, 8, 8).memory()["gathered"] / GIB
        rows.append(
            [
                f"{size.name} + {size.name}",
                str(fitting[0]) if fitting else "more than 64",
                str(slow[0]) if slow else "beyond 512",
                f"{ends:.1f} GiB",
            ]
        )
    headings = ["pair", "fewest H200 with fp32 masters", "communication is the limit from", "gathered on every GPU"]
    return table(headings, rows)


def check() -> str:
    """Compare the model with the only other measured pair, whose 8-bit optimizer takes CPU time."""
    seconds = measured_step("pair, all recomputed, fp8 AdamW", "qwen3-8b 4x4096")
    modelled = Estimate(SIZES[1], 1, 8).compute()
    row = ["8B + 8B, one H200", f"{modelled:.2f} s", f"{seconds:.2f} s", f"{modelled / seconds - 1:+.0%}"]
    return table(["step of four rows of 4096 tokens", "model", "measured", "difference"], [row])


TABLES = {"check": check, "time": time_table, "memory": memory_table, "crossings": crossings}


def filled(page: str) -> str:
    """Return the page with new tables between their markers."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{make()}\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
