"""What the audit's page adds to the report's style."""

AUDIT_STYLE = """
:root { --worse: #b04a00; --mark: #cfe6f5; --other-mark: #fbe0b5; }
body { max-width: 88rem; }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
caption { text-align: left; font-weight: 600; padding-bottom: .2rem; }
td.n, th.n { text-align: right; padding: .3rem 0 .3rem .8rem; }
th.n { white-space: normal; } tbody th { font-weight: 400; overflow-wrap: break-word; }
.tall .scroll { max-height: 17rem; overflow-y: auto; }
.choose { display: grid; gap: 1rem; grid-template-columns: minmax(0, 3fr) minmax(0, 4fr); }
.filters { display: grid; gap: .5rem; grid-template-columns: 1fr 1fr; align-content: start; }
.wide { grid-column: 1 / -1; } #count { font-weight: 600; }
label { font-size: .86rem; color: var(--soft); }
select, button, input { font: inherit; font-size: .95rem; color: var(--ink); background: #fff;
  border: 1px solid #767676; border-radius: .3rem; padding: .3rem .5rem; min-height: 2.3rem; }
select, #search, #note { width: 100%; }
input[type=number] { width: 6.5rem; } input[type=checkbox] { min-height: 0; }
button { cursor: pointer; } button:disabled { color: #767676; cursor: default; }
button[aria-pressed=true] { background: var(--blue); border-color: var(--blue); color: #fff; }
kbd { font: .78rem ui-monospace, monospace; border: 1px solid currentColor; border-radius: .2rem;
  padding: 0 .25rem; opacity: .85; }
.range { max-width: none; } .range figcaption { font-size: .86rem; color: var(--soft); }
#histogram svg { display: block; width: 100%; touch-action: pan-y; cursor: crosshair; }
#histogram text, .strip text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.bounds { display: flex; flex-wrap: wrap; gap: .6rem; align-items: center; }
.work { display: grid; grid-template-columns: 20rem minmax(0, 1fr); gap: 1rem; margin: .8rem 0; }
#list { position: sticky; top: .5rem; height: calc(100vh - 1rem); overflow-y: auto;
  border: 1px solid var(--line); border-radius: .4rem; }
.rows { position: relative; overflow: hidden; }
.row { position: absolute; left: 0; right: 0; height: 3.5rem; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); cursor: pointer; overflow: hidden; font-size: .86rem; }
.row[aria-selected=true] { background: #e3f0f9; box-shadow: inset .3rem 0 var(--blue); }
.row div { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.row .text-line { color: var(--soft); } .strength { font-variant-numeric: tabular-nums; }
.worse { color: var(--worse); font-weight: 600; }
#place { margin: 0; font-size: 1.05rem; } #content > * { margin: .5rem 0; }
#pair .text { max-height: none; } #pair .text.folded { max-height: 11rem; overflow-y: auto; }
mark { color: inherit; background: var(--mark); text-decoration: underline; border-radius: .15rem; }
.rejected mark { background: var(--other-mark); text-decoration-style: dotted; }
.strip { display: block; width: 100%; max-width: 26rem; }
#actions { position: sticky; bottom: 0; display: flex; flex-wrap: wrap; gap: .5rem .9rem;
  align-items: center; background: #fff; border-top: 2px solid var(--line); padding: .5rem 0; }
.buttons { display: flex; flex-wrap: wrap; gap: .4rem; } .grow { flex: 1 1 12rem; }
#actions .grow { display: flex; gap: .5rem; align-items: center; }
#problem { border-left: .45rem solid #d55e00; background: var(--box); padding: .6rem .9rem; }
#review h2 { font-size: 1.1rem; }
@media (max-width: 56rem) {
  .choose, .work { grid-template-columns: minmax(0, 1fr); }
  #list { position: static; height: 14.3rem; }
  #actions button { padding: .3rem .55rem; } #actions kbd { display: none; }
}
"""
