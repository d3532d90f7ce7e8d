package model

import "fmt"

// SettingError is an error in what the caller asked for, as opposed to a fault of a file or of the
// machine: it names the setting, what was given and what is allowed.
type SettingError struct{ err error }

func (e *SettingError) Error() string { return e.err.Error() }

// Unwrap gives errors.Is and errors.As the cause.
func (e *SettingError) Unwrap() error { return e.err }

// Settingf makes a SettingError, for a device that refuses what its session was asked for.
func Settingf(format string, args ...any) error { return settingf(format, args...) }

func settingf(format string, args ...any) error {
	return &SettingError{fmt.Errorf(format, args...)}
}
