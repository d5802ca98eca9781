"""The profiler behind `tc.profiler`: what it records, sums, prints, draws and writes."""
