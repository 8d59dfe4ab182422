"""Search of the layout that trains a model fastest on a cluster.

clusters         accelerators by their data sheets, and the network between them
space            all layouts of a number of ranks, and the rules that reject some
search           the fastest layouts, by the formulas of `layout`
job              the whole training: time, money, energy, and what failures cost
explanation      the fastest layout against others
training_file    a layout as a configuration of `traincope train`
"""
