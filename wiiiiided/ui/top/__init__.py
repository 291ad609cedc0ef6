"""`wiiiiide top`: all nodes and jobs as they are now, on one screen.

    keys ──► keymap.press(ui, key, snapshot) ────► ui, action ─┐
    Snapshots ──► feed ──► snapshot_feed ──────────► Scene ────┼──► view ──► paint ──► terminal
    log lines ──► feed ──► log_feed ────────────────────┘      │                 └──► SVG
    signals ────────► loop ◄───────────────────────────────────┘

`view` (a scene and a size → a Rich renderable) and `press` are pure functions: tests look at
screens without a terminal. Only `loop`, the feeds, `background` and `terminal` do I/O, and none of
them ever blocks.
"""
