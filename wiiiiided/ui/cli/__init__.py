"""The program `wiiiiide`.

main            from the words of a command line to an exit code
command_table   the commands by name; each is loaded when it is called
commands/       one command, one file of its name
doctor/         what the command doctor looks at, and how it judges
service/        how the command service installs and removes the daemon's units
the others      what several commands share: options, requests, tables, progress
"""
