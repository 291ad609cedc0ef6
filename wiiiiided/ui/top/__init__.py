"""`wiiiiide top`: all nodes and jobs as they are now, on one screen.

    keys ──► keymap.press(ui, key, snapshot) ────► ui, action ─┐
    Snapshots ──► feed ──► watch ──────────────────► Scene ────┼──► view ──► paint ──► terminal
    log lines ──► feed ──► log ─────────────────────────┘      │                 └──► SVG
    signals ────────► loop ◄───────────────────────────────────┘

`view` (a scene and a size → a Rich renderable) and `press` are pure functions: tests look at
screens without a terminal. Only `loop`, `feed`, `log`, `background` and `terminal` do I/O, and none
of them ever blocks.
"""
