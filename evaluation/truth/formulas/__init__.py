"""Formulas compared with FLOPs that real ranks count and with numbers that papers print."""
