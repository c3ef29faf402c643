package filewatch

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// maxSecret is the longest file of a secret, in bytes.
const maxSecret = 64 << 10

// Secret returns the secret that a regular file holds, as a token: a line of printable
// ASCII, without the white space around it. No error has any of it.
func Secret(path string) (string, error) {
	data, err := Read(path, maxSecret)
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(data))
	switch {
	case value == "":
		return "", fmt.Errorf("%s: the file is empty", path)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return "", fmt.Errorf("%s: it has more than one line, or is not printable ASCII", path)
	}
	return value, nil
}

// Exposed reports whether users other than the file's owner may write it, or others than
// its owner and group read it, going by its mode. That a group reads it is how keys are
// given to those who need them (root:ssl-cert, 0640). A file that can't be looked at is
// not said to be.
func Exposed(path string) bool {
	info, err := os.Stat(path)
	return err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o026 != 0
}
