//go:build !linux

package probe

import "errors"

var errNoDirect = errors.New("only Linux has them here")

type directFile struct{}

func openDirect(string) (*directFile, error)      { return nil, errNoDirect }
func (f *directFile) close()                      {}
func (f *directFile) readAt([]byte, int64) error  { return errNoDirect }
func alignedMemory(int64) ([]byte, func(), error) { return nil, nil, errNoDirect }
