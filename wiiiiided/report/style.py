"""How the page looks: one sheet, for light and dark, narrow and wide, screen and paper.

Colours are of Okabe and Ito's palette, which people with any kind of colour vision can tell apart;
dark pages take its lighter ones. Nothing is loaded: fonts are the reader's own.
"""

from __future__ import annotations

SHEET = """
:root{color-scheme:light dark;--ground:#fff;--text:#1b1f24;--soft:#59636e;--faint:#d8dee4;
--strip:#eef1f4;--one:#0072b2;--two:#d55e00;--compute:#0072b2;--exchange:#e69f00;--waiting:#cc79a7;
--good:#009e73;--bad:#d55e00;--open:#56b4e9}
@media (prefers-color-scheme:dark){:root{--ground:#14181d;--text:#e3e8ee;--soft:#9aa5b1;
--faint:#353c45;--strip:#242a32;--one:#56b4e9;--two:#f0a04b;--compute:#3f93c9;--exchange:#e69f00;
--waiting:#d48fb5;--good:#1fb98e;--bad:#ec7a35;--open:#56b4e9}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--ground);color:var(--text);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0 1rem}
h2{font-size:1.15rem;margin:2.2rem 0 .4rem;padding-top:.6rem;border-top:1px solid var(--faint)}
h3{font-size:1rem;margin:1.4rem 0 .2rem}
p{margin:.3rem 0 .8rem;max-width:46rem}
.soft,figcaption,footer{color:var(--soft)}
.notice{border-left:4px solid var(--two);padding:.4rem .8rem;background:var(--strip)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0}
dt{color:var(--soft)}
dd{margin:0;min-width:0}
figure{margin:1rem 0 1.6rem;break-inside:avoid}
figcaption b{color:var(--text)}
svg.chart{display:block;margin:.6rem 0 0 72px;width:calc(100% - 72px);overflow:visible;
font-size:12px}
svg.bars{margin-left:0;width:100%}
svg text{fill:var(--soft);stroke:none}
svg.bars g text,svg.strips g text{fill:var(--text)}
svg text.lost,.loud{fill:var(--bad);color:var(--bad);font-weight:700}
line.lost{stroke:var(--bad);stroke-width:2}
.end{text-anchor:end}.middle{text-anchor:middle}.start{text-anchor:start}
line{stroke:var(--soft)}
line.grid{stroke:var(--faint)}
line.start{stroke:var(--bad);stroke-dasharray:4 3;vector-effect:non-scaling-stroke}
line.whisker{stroke:var(--text);stroke-width:1.5}
path.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round;
vector-effect:non-scaling-stroke}
.line.one{stroke:var(--one)}.line.two{stroke:var(--two);stroke-dasharray:1 5}
.hover{fill:transparent}.hover:hover{fill:var(--text);fill-opacity:.1}
.strip{fill:var(--strip)}
.one,.raw{fill:var(--one)}.two,.wire{fill:var(--two)}
.compute{fill:var(--compute)}.exchange{fill:var(--exchange)}.waiting{fill:var(--waiting)}
.good{fill:var(--good)}.bad{fill:var(--bad)}
.held{fill:var(--waiting)}.open{fill:var(--open)}.looked{fill:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;list-style:none;margin:.4rem 0 0;padding:0;
font-size:.87rem}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.key.one,.key.raw{background:var(--one)}.key.two,.key.wire{background:var(--two)}
.key.compute{background:var(--compute)}.key.exchange{background:var(--exchange)}
.key.waiting{background:var(--waiting)}.key.good{background:var(--good)}
.key.bad{background:var(--bad)}.key.held{background:var(--waiting)}.key.open{background:var(--open)}
.key.looked{background:var(--soft)}
table{border-collapse:collapse;width:100%;font-size:.87rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .35rem;text-align:right;overflow-wrap:normal;
border-bottom:1px solid var(--faint);vertical-align:top}
th{color:var(--soft);font-weight:600;vertical-align:bottom;hyphens:none}
.left{text-align:left;overflow-wrap:anywhere;min-width:3.5em}
summary{cursor:pointer;margin:1rem 0 .3rem}
ol.story{list-style:none;margin:0;padding:0;font-size:.9rem}
ol.story li{padding:.1rem 0}
time{color:var(--soft);font-variant-numeric:tabular-nums;margin-right:.6rem}
footer{margin-top:2.5rem;font-size:.85rem}
@media screen and (max-width:760px){.wide{display:none}}
@media screen and (max-width:480px){dl{grid-template-columns:1fr}dt{margin-top:.4rem}}
@media screen and (max-width:1080px){
table{font-size:.75rem}
th,td{padding:.2rem .2rem}
}
@media screen and (max-width:900px){
table{font-size:.68rem}
th,td{padding:.2rem .12rem}
th{hyphens:manual}
}
@media screen and (max-width:720px){
table{font-size:.87rem}
thead{display:none}tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--faint)}
td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.05rem 0;text-align:right;
overflow-wrap:anywhere}
td::before{content:attr(data-title);color:var(--soft);text-align:left;flex:none}
}
@media print{
:root{--ground:#fff;--text:#000;--soft:#444;--faint:#ccc;--strip:#eee;--one:#0072b2;--two:#d55e00;
--compute:#0072b2;--exchange:#e69f00;--waiting:#cc79a7;--good:#009e73;--bad:#d55e00;--open:#56b4e9}
body{max-width:none;padding:0;font-size:11px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
table{font-size:8px}
tr,li{break-inside:avoid}
}
"""
