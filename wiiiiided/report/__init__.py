"""How a run went, for people: from what the daemon keeps of a job to a page, pure and without I/O.

    JobRecords ─► sound     numbers that can be counted with
               ─► history   attempts on one time axis, stretches nobody looked at left open
               ─► ranks     where each rank's and each node's time went, what it sent
               ─► summary   the few lines that everybody wants first
                     │
                     ├─► page     one HTML file: markup, style, charts (line, bars, timeline)
                     └─► cli/report_lines, the same on a terminal

Nothing here is trusted: names, reasons and stories are text of strangers, numbers may be absurd.
Text is bounded and escaped in `markup`, numbers are looked at in `sound`. What is not
known is left out or said to be unknown; nothing is invented.
"""
