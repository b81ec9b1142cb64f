"""The page's style: light, narrow enough to read, usable on a phone and on paper."""

STYLESHEET = """
:root { --ink: #222; --soft: #5a5a5a; --line: #ddd; --box: #f6f7f8; --blue: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1rem; color: var(--ink); background: #fff;
  font: 16px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.15rem; margin: 0; }
h2 { font-size: 1.3rem; margin: 2.2rem 0 .4rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
p { margin: .4rem 0; }
.meta, .note { color: var(--soft); font-size: .86rem; }
.verdict { border-left: .45rem solid #777; background: var(--box); padding: .6rem .9rem;
  margin: .6rem 0; }
.verdict strong { font-size: 1.25rem; line-height: 1.3; display: block; }
.verdict.better { border-color: #009e73; } .verdict.worse { border-color: #d55e00; }
.verdict.unclear { border-color: #e69f00; }
.warning { color: #7a5600; }
.cards { display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: .7rem; }
.card { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; }
.card h2 { font-size: 1rem; margin: 0 0 .3rem; border: 0; padding: 0; }
.card ul { margin: 0; padding-left: 1.1rem; } .card li { margin: .15rem 0; font-size: .92rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: 1.2rem; margin: .8rem 0; }
figure { margin: 0; max-width: 34rem; break-inside: avoid; }
figure img { width: 100%; height: auto; }
figcaption b { display: block; font-size: .95rem; margin-bottom: .2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); }
td.n, th.n { white-space: nowrap; font-variant-numeric: tabular-nums; }
.rows-read th.n, .rows-read td.n { text-align: right; }
.status { font-weight: 600; white-space: nowrap; }
.holds { color: #00704f; } .fails { color: #b04a00; } .unclear-text { color: #7a5600; }
pre, .text { white-space: pre-wrap; overflow-wrap: anywhere; font: .84rem/1.4 ui-monospace,
  "DejaVu Sans Mono", monospace; background: var(--box); padding: .4rem .5rem; margin: .15rem 0;
  border-radius: .3rem; max-height: 16rem; overflow-y: auto; }
.pair { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .7rem;
  margin: .6rem 0; break-inside: avoid; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr));
  gap: .6rem; }
.label { font-size: .8rem; color: var(--soft); }
.label { white-space: nowrap; }
.tag { display: inline-block; border: 1px solid var(--line); border-radius: .3rem;
  padding: 0 .4rem; margin-right: .3rem; font-size: .82rem; white-space: nowrap; }
details > summary { cursor: pointer; color: var(--blue); margin: .5rem 0; }
code { font-size: .82rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: .6rem; } .verdict strong { font-size: 1.08rem; } }
@media print { body { max-width: none; font-size: 11px; } .text, pre { max-height: none; }
  .charts { grid-template-columns: 1fr 1fr; } h2 { break-after: avoid; } }
"""
