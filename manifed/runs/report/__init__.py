"""Figures and tables of runs, made from run folders alone: ``manifed report FOLDER...``."""
