"""The predictions of `wiiiiide plan`: plan_accuracy.py's parts.

accuracy  trials and what then happens, in turns        rank         a rank of a trial
"""
