"""What a kernel call costs beside what it must cost: counts of the stand-in on the roofline of a chip.

The figures of a core are those of the AWS Neuron documentation: the architecture pages of Trainium2 and Trainium3
(cores, HBM bandwidth of a chip, TFLOPS of a core) and the NKI architecture guides (engine clocks, SBUF, PSUM). A
core gets an eighth of its chip's HBM bandwidth. Where two pages differ (HBM of trn2: 2.9 and 3 TB/s; of trn3: 4.7 and
4.9), the smaller figure stands here.

Everything here is arithmetic on counts, not a measurement: engines overlap perfectly, DMA reaches the full bandwidth,
nothing waits. A real kernel is slower; the ratio to the least work says how much of that is the kernel's own doing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vllm_neuron.errors import ConfigError, nearest
from vllm_neuron.nki.bounds import ARRAY, Bound
from vllm_neuron.nki.standin.counts import FP32_PASSES, Counts

ENGINES = ("tensor", "vector", "scalar", "gpsimd")


@dataclass(frozen=True)
class Chip:
    """One NeuronCore of a chip.

    Attributes:
        name: ``trn2`` or ``trn3``.
        core: generation of the core.
        clock_hz: engine -> cycles a second.
        hbm_bytes_per_second: share of the chip's HBM bandwidth.
        bf16_flops: dense, a second, from the documentation (not from the clock).
        fp32_flops: dense, a second.
        sbuf_bytes: a partition, as documented; the stand-in allows 192 KiB.
        psum_bytes: a partition.
        source: pages of the AWS Neuron documentation.
    """

    name: str
    core: str
    clock_hz: dict[str, float]
    hbm_bytes_per_second: float
    bf16_flops: float
    fp32_flops: float
    sbuf_bytes: int
    psum_bytes: int
    source: str

    @property
    def balance(self) -> float:
        """Operations a byte at which bf16 products take as long as their bytes."""
        return self.bf16_flops / self.hbm_bytes_per_second


TRN2 = Chip(
    name="trn2",
    core="NeuronCore-v3",
    clock_hz={"tensor": 2.4e9, "vector": 0.96e9, "scalar": 1.2e9, "gpsimd": 1.2e9},
    hbm_bytes_per_second=2.9e12 / 8,
    bf16_flops=79e12,
    fp32_flops=20e12,
    sbuf_bytes=224 * 1024,
    psum_bytes=16 * 1024,
    source="AWS Neuron documentation: Trainium2 Architecture; Trainium2 Architecture Guide for NKI; NeuronCore-v3",
)
TRN3 = Chip(
    name="trn3",
    core="NeuronCore-v4",
    clock_hz={"tensor": 2.4e9, "vector": 1.2e9, "scalar": 1.2e9, "gpsimd": 1.2e9},
    hbm_bytes_per_second=4.7e12 / 8,
    bf16_flops=79e12,
    fp32_flops=20e12,
    sbuf_bytes=256 * 1024,
    psum_bytes=16 * 1024,
    source="AWS Neuron documentation: Trainium3 Architecture; Trainium3 Architecture Guide for NKI; NeuronCore-v4",
)
CHIPS = {chip.name: chip for chip in (TRN2, TRN3)}


def chip(name: str) -> Chip:
    """A chip by name.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in CHIPS:
        raise ConfigError("chip", name, f"one of {', '.join(CHIPS)}", nearest(name, CHIPS))
    return CHIPS[name]


@dataclass(frozen=True)
class Estimate:
    """Least time of some work on a logical core, if all engines run at once.

    Attributes:
        seconds: ``hbm``, and each engine that has work -> its time.
    """

    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """Time of the busiest part."""
        return max(self.seconds.values(), default=0.0)

    @property
    def limit(self) -> str:
        """The busiest part."""
        return max(self.seconds, key=lambda part: self.seconds[part], default="")


def counted(counts: Counts, on: Chip) -> Estimate:
    """Time of what a call did; the work of two programs is spread over two cores."""
    seconds = {"hbm": counts.hbm_traffic / on.hbm_bytes_per_second / counts.programs}
    for engine in ENGINES:
        if counts.cycles[engine]:
            seconds[engine] = counts.cycles[engine] / on.clock_hz[engine] / counts.programs
    return Estimate(seconds)


def least(bound: Bound, on: Chip, programs: int = 1) -> Estimate:
    """Time of the least work of a call on so many cores: the roofline."""
    seconds = {"hbm": bound.hbm_bytes / on.hbm_bytes_per_second / programs}
    if bound.tensor_cycles:
        seconds["tensor"] = bound.tensor_cycles / on.clock_hz["tensor"] / programs
    return Estimate(seconds)


def bound_of(
    read: Iterable[Any], written: Iterable[Any], products: Iterable[tuple[int, int, int]] = (), itemsize: int = 2
) -> Bound:
    """The least work of a call by its tensors: each read once, each written once, and its matrix products.

    Args:
        read: arrays that the kernel reads whole (anything with ``nbytes``); None is left out.
        written: arrays that it writes.
        products: (rows, contraction, columns) of each product.
        itemsize: bytes of an operand; 4 takes four times the cycles.
    """
    size = sum(t.nbytes for t in (*read, *written) if t is not None)
    passes = FP32_PASSES if itemsize == 4 else 1
    return Bound(size, sum(math.prod(product) for product in products) * passes / ARRAY)


@dataclass(frozen=True)
class Cost:
    """A kernel call on the roofline.

    Attributes:
        kernel: its name.
        chip: ``trn2`` or ``trn3``.
        programs: cores that shared the call.
        counts: what it did.
        counted: its time by the counts.
        least: the time of the least work; None when that isn't known.
        bound: the least work; None when that isn't known.
    """

    kernel: str
    chip: str
    programs: int
    counts: Counts
    counted: Estimate
    least: Estimate | None
    bound: Bound | None

    @property
    def ratio(self) -> float | None:
        """Counted work as a multiple of the least, of the part that limits the least; None without a bound."""
        if self.least is None:
            return None
        part = self.least.limit
        return self.counted.seconds[part] / self.least.seconds[part] if self.least.seconds[part] else None

    @property
    def slowdown(self) -> float | None:
        """Time by the counts as a multiple of the roofline's: other engines may take longer than what limits it."""
        return self.counted.total / self.least.total if self.least is not None and self.least.total else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: times in microseconds."""
        counts = asdict(self.counts)
        del counts["events"], counts["kernel"], counts["programs"]
        return {
            "kernel": self.kernel,
            "chip": self.chip,
            "programs": self.programs,
            "counts": counts,
            "counted_us": {part: 1e6 * s for part, s in self.counted.seconds.items()},
            "counted_limit": self.counted.limit,
            "least_us": None if self.least is None else {part: 1e6 * s for part, s in self.least.seconds.items()},
            "least_limit": None if self.least is None else self.least.limit,
            "ratio": self.ratio,
            "slowdown": self.slowdown,
        }


def cost(counts: Counts, bound: Bound | None, on: Chip) -> Cost:
    """Set the counts of a call beside its least work on a chip."""
    floor = None if bound is None else least(bound, on, counts.programs)
    return Cost(counts.kernel, on.name, counts.programs, counts, counted(counts, on), floor, bound)
