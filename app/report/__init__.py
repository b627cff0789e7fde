"""Figures and tables of runs, made from run folders alone: ``python -m app.report FOLDER...``."""
