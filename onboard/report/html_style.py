"""The style sheet of the HTML views: one column, system fonts, light and dark by the reader's setting."""

CSS = """
:root { --bg:#fff; --fg:#1b1f24; --dim:#5b6570; --line:#d8dee4; --card:#f6f8fa; --ok:#116329; --okbg:#dafbe1;
  --todo:#9a2f0b; --todobg:#ffe8dc;
  --c0:#3b6fd4; --c1:#e08a1e; --c2:#3a9d5d; --c3:#a55bc9; --c4:#d1495b; --c5:#2a9db0; --c6:#b8a11a; --c7:#7c8794; }
@media (prefers-color-scheme: dark) { :root { --bg:#0f1318; --fg:#e6e9ed; --dim:#97a3af; --line:#2c343d;
  --card:#171d24; --ok:#6fdd8b; --okbg:#12301c; --todo:#ffab8a; --todobg:#3b1d12;
  --c0:#6f9bf0; --c1:#f0a94e; --c2:#63c386; --c3:#c68be3; --c4:#ea7687; --c5:#5cc4d6; --c6:#d8c34a; --c7:#9aa5b1; } }
* { box-sizing:border-box; }
body { margin:0 auto; padding:2rem 1.25rem 4rem; max-width:68rem; background:var(--bg); color:var(--fg);
  font:15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size:1.45rem; margin:0 0 .25rem; overflow-wrap:anywhere; }
h1 .to { color:var(--dim); font-weight:400; }
h2 { font-size:1.05rem; margin:2.25rem 0 .5rem; padding-bottom:.3rem; border-bottom:1px solid var(--line); }
h2 small { color:var(--dim); font-weight:400; margin-left:.5rem; }
p { margin:.3rem 0; } .dim { color:var(--dim); } ul.notes { color:var(--dim); padding-left:1.1rem; margin:.75rem 0; }
.tiles { display:flex; flex-wrap:wrap; gap:.75rem; margin:1.25rem 0; }
.tile { background:var(--card); border:1px solid var(--line); border-radius:.5rem; padding:.6rem 1rem; min-width:8rem; }
.tile b { display:block; font-size:1.5rem; line-height:1.2; font-variant-numeric:tabular-nums; }
.tile.ok b { color:var(--ok); } .tile.todo b { color:var(--todo); }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; width:100%; }
th, td { text-align:left; vertical-align:top; padding:.4rem .9rem .4rem 0; border-bottom:1px solid var(--line);
  overflow-wrap:anywhere; }
th { font-weight:600; } td.n { color:var(--dim); white-space:pre; }
table.numbers td { font-variant-numeric:tabular-nums; }
code { font:13px/1.45 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-wrap:anywhere; }
.row { display:grid; grid-template-columns:minmax(0,1fr) minmax(0,1fr); gap:.25rem 1.5rem; padding:.75rem 0;
  border-bottom:1px solid var(--line); }
.row > .field { grid-column:1/-1; display:flex; flex-wrap:wrap; gap:.25rem .6rem; align-items:baseline; }
.row > .how { grid-column:1/-1; margin-top:.15rem; }
.side small { display:block; color:var(--dim); overflow-wrap:anywhere; } .side { overflow-wrap:anywhere; }
.side .who { color:var(--dim); font-size:.8rem; }
.chip { font-size:.75rem; border-radius:1rem; padding:.05rem .55rem; border:1px solid var(--line); color:var(--dim); }
.mark { font-size:.75rem; font-weight:600; border-radius:1rem; padding:.05rem .6rem; }
.mark.ok { background:var(--okbg); color:var(--ok); } .mark.todo { background:var(--todobg); color:var(--todo); }
.map { margin:.5rem 0 1rem; } .map svg { display:block; width:100%; height:28px; }
.map .name { color:var(--dim); overflow-wrap:anywhere; } .map .ticks { height:14px; }
.map text { fill:var(--dim); font:11px system-ui, "DejaVu Sans", sans-serif; }
.legend span { display:inline-flex; align-items:center; gap:.4rem; margin-right:1.1rem; }
.legend i { width:.85rem; height:.85rem; border-radius:.15rem; display:inline-block; }
pre { background:var(--card); border:1px solid var(--line); border-radius:.5rem; padding:.75rem; overflow-x:auto;
  font:12px/1.4 ui-monospace, Menlo, "DejaVu Sans Mono", monospace; }
@media (max-width:40rem) { .row { grid-template-columns:1fr; } }
@media print { body { max-width:none; } .row { break-inside:avoid; } }
""" + "".join(f".k{i} {{ fill:var(--c{i}); background:var(--c{i}); }}\n" for i in range(8))
