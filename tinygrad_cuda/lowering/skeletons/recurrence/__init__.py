"""RECURRENCE: all steps of a recurrent layer in one kernel, forward and backward."""
