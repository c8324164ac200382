"""Renders an analysis for people; never computes one."""
