"""Number formats of a training: `train.precision` names one row of a table, and the engine follows the row.

formats          the table: what is computed, multiplied and scaled in which type
scales           the scale of each operand of a product, from the largest numbers of earlier steps
scaled_products  linear layers whose operands are rounded to the types of the format
loss_scaler      the scale of the loss, and the steps that an overflow skips
observed         numbers that a format saturates or rounds to zero, per layer
drift            the results of `traincope drift`, without torch
"""
