"""The lines of a layer's ``forward``."""

from __future__ import annotations

from onboard.scaffold.build import Built


def forward(built: Built, own: str, step: str) -> list[str]:
    """The lines of a layer's forward; without ``own`` and ``step`` they are the formula for people."""
    have = built.layer
    scale = f"{own}residual_scale * " if built.scale is not None else ""
    after = f", {step}" if step else ""

    def block(name: str, x: str) -> str:
        inner = f"{own}{name}_norm({x})" if f"{name}_norm" in have else x
        more = after if name == "attn" else (f", {x}" if "MoEBesideMLP" in have[name].blocks else "")
        text = f"{own}{name}({inner}{more})"
        if f"post_{name}_norm" in have and built.wiring.shape != "after":
            text = f"{own}post_{name}_norm({text})"
        return scale + text

    inputs = ", input_TP" if step else ", input"
    last = " * self.scalar" if built.scalar and own else ""
    shape = built.wiring.shape
    if shape == "parallel":
        both = f"{own}attn(h_TH{after}) + {own}mlp(h_TH)"
        lines = [f"h_TH = {own}attn_norm(x_TH)", f"return x_TH + {f'{scale}({both})' if scale else both}"]
    elif shape == "parallel2":
        lines = [f"return x_TH + {block('attn', 'x_TH')} + {block('mlp', 'x_TH')}"]
    elif shape == "after":
        lines = [f"x_TH = {own}post_attn_norm(x_TH + {block('attn', 'x_TH')})"]
        lines.append(f"return {own}post_mlp_norm(x_TH + {block('mlp', 'x_TH')})")
    else:
        lines = [f"x_TH = x_TH + {block('attn', 'x_TH')}"] if "attn" in have else []
        lines += [f"x_TH = x_TH + {block('mlp', 'x_TH')}"] if "mlp" in have else []
        lines = [*lines[:-1], "return " + lines[-1].removeprefix("x_TH = ")] if lines else ["return x_TH"]
    if "layer_input" in have:
        lines[-1] = "x_TH = " + lines[-1].removeprefix("return ")
        if have["layer_input"].conditions and own:
            lines += [f"if {own}layer_input is not None:", f"    x_TH = x_TH + {own}layer_input(x_TH{inputs})"]
            lines.append("return x_TH")
        else:
            lines.append(f"return x_TH + {own}layer_input(x_TH{inputs})")
    if last:
        lines[-1] = f"return ({lines[-1].removeprefix('return ')}){last}"
    return lines
