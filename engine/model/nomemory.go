package model

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/engine/machine"
)

// noMemory adds the arithmetic to an error of a mapping that the process's limit of address space left no room for.
func noMemory(err error) error {
	if !errors.Is(err, unix.ENOMEM) {
		return err
	}
	if limit := machine.AddressSpace("/"); limit != "" {
		return fmt.Errorf("%w (%s)", err, limit)
	}
	return err
}
