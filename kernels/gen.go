package kernels

//go:generate go run -C _gen ./mul -set tile512 -pkg kernels -out ../mul_tile512_amd64.s -stubs ../mul_tile512_stubs_amd64.go
//go:generate go run -C _gen ./mul -set tile256 -pkg kernels -out ../mul_tile256_amd64.s -stubs ../mul_tile256_stubs_amd64.go
//go:generate go run -C _gen ./mul -set decode512 -pkg kernels -out ../mul_decode512_amd64.s -stubs ../mul_decode512_stubs_amd64.go
//go:generate go run -C _gen ./mul -set decode256 -pkg kernels -out ../mul_decode256_amd64.s -stubs ../mul_decode256_stubs_amd64.go
//go:generate go run -C _gen ./mul -set few512 -pkg kernels -out ../mul_few512_amd64.s -stubs ../mul_few512_stubs_amd64.go
//go:generate go run -C _gen ./mul -set vec512 -pkg kernels -out ../mul_vec512_amd64.s -stubs ../mul_vec512_stubs_amd64.go
