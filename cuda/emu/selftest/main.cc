// The emulator's own tests. `selftest right` runs what must work, in one process; `selftest NAME` makes one mistake, and
// test.sh looks at how the process ends and what it says.
#include "driver.h"

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "right";
    bool found = false;
    for (const Case *c = kRight; c->name; c++)
        if (strcmp(name, "right") == 0 || strcmp(name, c->name) == 0) {
            found = true;
            c->run();
            printf("ok %s\n", c->name);
            fflush(stdout);
        }
    for (const Case *c = kWrong; c->name; c++)
        if (strcmp(name, c->name) == 0) {
            found = true;
            c->run();
        }
    if (found) return 0;
    fprintf(stderr, "selftest: no case %s\n", name);
    return 2;
}
