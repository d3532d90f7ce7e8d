// sluice_first initialises the driver. Without one that answers it says why on standard error and ends the process with
// status 1.
#ifndef SLUICE_FIRST_H
#define SLUICE_FIRST_H

void sluice_first(void);

#endif
