"""Recurrent operators: the recurrence of an LSTM, a GRU or an RNN as one kernel."""
