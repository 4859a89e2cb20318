//! How the page looks: on a phone, on a desk, on paper, by day and by night. Nothing is loaded from anywhere.

/// The style sheet. Series colours are told apart with the usual kinds of colour blindness too (after Okabe and Ito),
/// and every series has a mark of its own besides.
pub const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1f26;--soft:#5b6572;--line:#dde3ea;--box:#f5f7fa;--good:#0b6bcb;--warn:#9a3412;--warnbox:#fff4ed;
--s0:#0b6bcb;--s1:#c2570c;--s2:#0a7d5a;--s3:#a3337f;--s4:#8a6d00;--s5:#4b4fb8;--s6:#6b7280;--s7:#b3261e}
@media(prefers-color-scheme:dark){:root{--bg:#0e1116;--fg:#e4e9ef;--soft:#9aa5b1;--line:#2b323b;--box:#171c23;--good:#6db3f8;--warn:#fdba8c;--warnbox:#2a1a10;
--s0:#5aa9f5;--s1:#f29d52;--s2:#3ecf9f;--s3:#e07fc0;--s4:#dcc04a;--s5:#9ea3ff;--s6:#a8b0ba;--s7:#ff8a80}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;padding:1.2rem 1rem 4rem;max-width:52rem;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,-apple-system,'Segoe UI',sans-serif;overflow-wrap:break-word}
h1{font-size:1.7rem;line-height:1.2;margin:.4rem 0}h2{font-size:1.4rem;line-height:1.25;margin:3.2rem 0 .4rem;padding-top:1.2rem;border-top:2px solid var(--line)}
h3{font-size:1.12rem;margin:2.2rem 0 .3rem}h4{font-size:1rem;margin:1.4rem 0 .3rem}p{margin:.5rem 0}
a{color:var(--good)}.soft,small,figcaption{color:var(--soft)}small{font-size:.82em}
.verdict{background:var(--box);border-left:4px solid var(--good);padding:.7rem 1rem;margin:.8rem 0;font-size:1.06rem}
.verdict p{margin:.2rem 0}.void{background:var(--warnbox);border-left:4px solid var(--warn);padding:.5rem 1rem;margin:.8rem 0}
.badge{display:inline-block;border:1px solid var(--line);border-radius:1rem;padding:0 .6rem;font-size:.85rem;color:var(--soft)}
nav ul,.legend{list-style:none;margin:.4rem 0;padding:0;display:flex;flex-wrap:wrap;gap:.15rem 1rem}nav{margin:1rem 0}
.legend{font-size:.9rem}.legend svg{width:16px;height:12px;margin-right:.35rem;vertical-align:-1px}
figure{margin:.8rem 0 1.2rem}figcaption{font-size:.92rem;margin-bottom:.2rem}
svg.wide,svg.narrow{display:block;width:100%;height:auto}svg.narrow{display:none}
@media screen and (max-width:40rem){svg.wide{display:none}svg.narrow{display:block}td small{display:block}body{padding:.8rem .9rem 3rem}h1{font-size:1.4rem}h2{font-size:1.22rem}}
.scroll{overflow-x:auto;margin:.4rem 0}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}
td,th{padding:.22rem .7rem .22rem 0;text-align:right;vertical-align:top;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600}td:first-child,th:first-child{text-align:left;white-space:normal;min-width:7.5rem}
table.words td{text-align:left;white-space:normal}table.words th{text-align:left;min-width:6rem}
.findings b{white-space:nowrap}.findings .confirmed{color:var(--s2)}.findings .contradicted{color:var(--s7)}.findings .open{color:var(--soft)}
@media screen and (max-width:40rem){.findings thead{display:none}.findings tr{display:block;border-bottom:1px solid var(--line);padding:.4rem 0}
.findings th,.findings td{display:block;border:0;padding:.1rem 0}.findings td[data-of]::before{content:attr(data-of) ': ';color:var(--soft)}}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--good)}
pre{background:var(--box);padding:.6rem .8rem;overflow-x:auto;font:.82rem/1.45 ui-monospace,Menlo,Consolas,monospace;margin:.4rem 0}
code{font:.88em ui-monospace,Menlo,Consolas,monospace}
svg text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--soft)}svg text.head,svg text.name,svg text.value{fill:var(--fg)}svg text.head{font-weight:600}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}.whisker{stroke:var(--fg);stroke-width:1.3}
.l{fill:none;stroke-width:2.2;stroke-linejoin:round}.l.fit{stroke-width:1.4}.l.dashed{stroke-width:1.4;stroke-dasharray:6 5}.l.dotted{stroke-dasharray:1 5;stroke-linecap:round}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}
.l{stroke:var(--c)}.m,.b{fill:var(--c);stroke:var(--c)}.b{fill-opacity:.82}.m{stroke:var(--bg);stroke-width:1}.hollow{fill:var(--bg);stroke:var(--c);stroke-width:1.6}.b.hollow{stroke-dasharray:4 3;fill-opacity:1}
@media print{:root{--bg:#fff;--fg:#000;--soft:#444;--line:#bbb;--box:#f4f4f4;--good:#0b4f9c;--warn:#7a2a0e;--warnbox:#fff;
--s0:#0b6bcb;--s1:#c2570c;--s2:#0a7d5a;--s3:#a3337f;--s4:#8a6d00;--s5:#4b4fb8;--s6:#6b7280;--s7:#b3261e}
body{max-width:none;padding:0;font-size:10.5pt}h2{break-before:page;border:0}h2,h3,h4,figcaption{break-after:avoid}figure,tr,.verdict{break-inside:avoid}
.scroll,pre{overflow:visible}pre{white-space:pre-wrap}td,th{white-space:normal}nav{display:none}details::details-content{content-visibility:visible;height:auto}a{text-decoration:none}}
";
