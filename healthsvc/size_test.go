package healthsvc

import (
	"testing"
	"unsafe"

	"gatehouse.internal/lbcore"
)

// What an agent has for each endpoint, and for each cluster's share in it, fits the
// sizes in which Go gives out memory: a field more may take a lot more.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return
	}
	for name, size := range map[string][2]uintptr{
		"target":          {unsafe.Sizeof(target{}), 256},
		"verdict":         {unsafe.Sizeof(verdict{}), 144},
		"ask":             {unsafe.Sizeof(ask{}), 32},
		"Ref":             {unsafe.Sizeof(Ref{}), 24},
		"lbcore.Member":   {unsafe.Sizeof(lbcore.Member{}), 144},
		"lbcore.Addr":     {unsafe.Sizeof(lbcore.Addr{}), 32},
		"lbcore.Endpoint": {unsafe.Sizeof(lbcore.Endpoint{}), 200},
	} {
		if size[0] > size[1] {
			t.Errorf("%s has %d bytes, want at most %d", name, size[0], size[1])
		}
	}
}
