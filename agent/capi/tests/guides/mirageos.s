# What surrounds the code of docs/guide/mirageos.md in Solo5's interrupt entry.
    .text
irq_entry:
//= 1
    call intr_irq_handler
