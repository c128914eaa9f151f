"""Registers, and what the two programs of a logical core do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_neuron.nki.standin import races
from vllm_neuron.nki.standin.core import Core, current, fail
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.isa.enums import engine as engines
from vllm_neuron.nki.standin.pattern import Register, integer
from vllm_neuron.nki.standin.tensor import Tensor

VirtualRegister = Register


def register_alloc(x: Any = None) -> Register:
    """A register, with an integer or the value of a one-element tensor in it when ``x`` is given."""
    current("register_alloc")
    register = Register()
    if x is not None:
        register.value = integer(x, "register_alloc.x")
    return register


def register_load(dst: Register, src: Tensor) -> None:
    """Load the only element of a tensor in HBM or SBUF."""
    core = current("register_load")
    _register(dst, "register_load.dst")
    s = o.operand(src, "register_load.src", o.DMA)
    dst.value = integer(s, "register_load.src")
    o.note_read(s)
    core.tick("gpsimd", "register_load", 0.0)


def register_move(dst: Register, imm: Any) -> None:
    """Put an integer into a register."""
    current("register_move")
    _register(dst, "register_move.dst")
    dst.value = integer(imm, "register_move.imm")


def register_store(dst: Tensor, src: Any) -> None:
    """Write a register to the only element of a tensor."""
    core = current("register_store")
    t = o.operand(dst, "register_store.dst", o.DMA)
    if t.size != 1:
        fail("register_store.dst", t.shape, "one element")
    o.store(t, np.full(t.shape, integer(src, "register_store.src"), np.int64))
    core.tick("gpsimd", "register_store", 0.0)


def _register(value: Any, argument: str) -> None:
    if not isinstance(value, Register):
        fail(argument, type(value).__name__, "a register from nisa.register_alloc")


def _two(core: Core, what: str) -> None:
    if core.programs != 2:
        fail(what, f"{core.programs} program", "two programs: kernel[2](...)")


def sendrecv(
    src: Tensor,
    dst: Tensor,
    send_to_rank: Any,
    recv_from_rank: Any,
    pipe_id: Any = 0,
    dma_engine: Any = None,
    name: str | None = None,
) -> None:
    """Swap tiles in SBUF: ``src`` goes to the other program's ``dst``, and its ``src`` comes into this ``dst``."""
    core = current("sendrecv")
    _two(core, "sendrecv")
    other = 1 - core.program
    for argument, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if integer(rank, f"sendrecv.{argument}") != other:
            fail(f"sendrecv.{argument}", rank, f"{other}, the other program of program {core.program}")
    s = o.source(src, "sendrecv.src", o.SBUF)
    t = o.target(dst, "sendrecv.dst", o.SBUF)
    if s.dtype != t.dtype or s.shape[0] != t.shape[0] or s.size != t.size:
        fail("sendrecv.dst", f"{t!r}", f"the shape {s.shape} and type {s.dtype} of src")
    key = ("sendrecv", integer(pipe_id, "sendrecv.pipe_id"))
    received = core.launch.meet(core, key, s.array.copy(), "sendrecv")
    if received.dtype != t.array.dtype or received.size != t.size or received.shape[0] != t.shape[0]:
        fail("sendrecv.dst", f"{t!r}", f"{received.shape} {received.dtype}, as the other program sends")
    o.store(t, received)
    core.move("sendrecv", "sbuf", "sbuf", s.size * s.dtype.itemsize, s.shape[0])


def core_barrier(
    data: Any, cores: int | Sequence[int] = (0, 1), engine: Any = engines.unknown, name: str | None = None
) -> None:
    """Wait until both programs are here; ``data`` is the shared HBM tensor (or list of them) that they wrote.

    A single program may name itself, ``cores=(0,)``: there is nobody to wait for.
    """
    core = current("core_barrier")
    covered = list(data) if isinstance(data, list | tuple) else [data]
    for t in covered:
        if not isinstance(t, Tensor) or t.place != "hbm":
            fail("core_barrier.data", repr(t), "a tensor in shared HBM, or a list of them")
    wanted = (cores,) if isinstance(cores, int) else tuple(cores)
    if wanted != (0,) or core.programs != 1:
        _two(core, "core_barrier")
        if wanted != (0, 1):
            fail("core_barrier.cores", cores, "(0, 1)")
        storages = [t.storage for t in covered]
        core.launch.meet(core, ("core_barrier",), None, "core_barrier", lambda: races.settle(storages))
    core.wait("core_barrier")
