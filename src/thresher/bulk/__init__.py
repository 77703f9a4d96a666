"""Whole files through an engine: read in parts, answered part by part, written so that nothing is lost or repeated."""
