"""How a run went, for people: from the records a daemon keeps of a job to a page, pure, no I/O.

    JobRecords ─► sanitize   numbers that arithmetic can be done with
               ─► history    attempts on one time axis, stretches without a daemon left open
               ─► ranks      where each rank's and each node's time went, what it sent
               ─► summary    the few lines at the top
               ─► over_time, rank_charts, timeline, *_table    charts and tables as data
                     │
                     ├─► page     one HTML file, by the templates beside it
                     └─► cli/report_lines, the same on a terminal

Nothing here is trusted: names, reasons and stories are text of other users, numbers may be absurd.
Text is bounded in `formats`, cleaned and escaped where it is written; `sanitize` checks numbers. A
value that is not known is left out or said to be unknown; nothing is invented.
"""
