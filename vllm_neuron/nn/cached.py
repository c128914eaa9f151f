"""What every block with a KV cache has: a spec of its own or the name of another layer's, and what it gets bound."""

from __future__ import annotations

from torch import Tensor, nn

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.kv_cache import KVBinding, LayerSpec
from vllm_neuron.step import KVView, Step


def cache_name(layer: int) -> str:
    """The name of a layer's cache."""
    return f"layers.{layer}.self_attn"


class CachedBlock(nn.Module):
    """A block that writes and reads a paged cache.

    Attributes:
        asks: what the block needs of the cache that it reads, on this rank.
        reads_other: the block reads another layer's cache and writes none.
        reads: name of the cache that the block reads, its own or another layer's.
        cache: what the runner bound; None before :meth:`bind`.
    """

    def __init__(self, layer: int, *, shared_with: int | None = None) -> None:
        super().__init__()
        if shared_with is not None and not 0 <= shared_with < layer:
            raise ConfigError("Attention: shared_with", shared_with, f"a layer before {layer}, whose cache is read")
        self.reads_other = shared_with is not None
        self.reads = cache_name(layer if shared_with is None else shared_with)
        self.asks: LayerSpec | None = None
        self.cache: KVBinding | None = None

    @property
    def spec(self) -> LayerSpec | None:
        """The cache that the block has of its own; None when it reads another layer's and writes none."""
        return None if self.reads_other else self.asks

    def bind(self, cache: KVBinding) -> None:
        """Take the cache named ``reads`` from the runner."""
        self.cache = cache

    def view(self, step: Step) -> KVView:
        """The step's view of the cache's group; the first group before a cache is bound."""
        return step.views[self.cache.group if self.cache else 0]

    def pages(self) -> Tensor:
        """The bound cache, [blocks, block_size, width].

        Raises:
            ConfigError: no cache is bound, and this step reads one.
        """
        if self.cache is None:
            raise ConfigError(f"cache {self.reads}", None, "a bound cache", "Call the model's bind_kv_cache first.")
        return self.cache.pages
