"""`wiiiiide top`: what every node and job does now, on one screen.

    keys ──► keys ──► press(ui, key, snapshot) ──► ui, action ─┐
    Snapshots ──────► feed ────────────────────────► Scene ────┼──► render ──► Frame ──► terminal
    log lines ──────► log ──────────────────────────────┘      │                    └──► svg
    signals ────────► loop ◄───────────────────────────────────┘

What is drawn and what a key does are pure functions: tests look at screens without a terminal.
Only `loop`, `feed`, `log`, `errands` and `terminal` touch the world, and none of them ever blocks.
"""
