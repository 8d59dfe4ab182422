"""Number formats of a training: `train.precision` names one row of a table, and the engine follows the row.

formats          the table: what is computed, multiplied and scaled in which type
scales           the scale of each operand of a product, from the largest numbers of earlier steps
block_scales     the scale of each block of an operand, from its own numbers
grouped_products the products of experts
scaled_products  linear layers and experts whose operands are rounded to the types of the format
loss_scaler      the scale of the loss, and the steps that an overflow skips
observed         numbers that a format saturates or rounds to zero, per layer
drift            the results of `traincope drift`, without torch
"""
